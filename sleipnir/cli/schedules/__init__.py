"""Commands on schedules: how do runs start by themselves?"""
