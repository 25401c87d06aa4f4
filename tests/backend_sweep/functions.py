"""Functions that the database of operators does not have."""
def function_cases():
    return []
