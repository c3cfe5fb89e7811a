"""What happens when visits of a step end: whose writes count, where do they lead, and how does the next step open?"""
