"""Commands on knowledge bases: how is one built, shown and searched?"""
