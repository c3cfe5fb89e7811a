"""Commands on agents: how is one found, made, checked, drawn and changed?"""
