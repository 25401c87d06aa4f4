"""One mistake in a valid graph: is it refused, by the rule that it breaks and at the place where it is?"""
