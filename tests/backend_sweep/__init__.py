"""Every back end against eager: torch's database of operators, adversarial values, and functions at open sizes."""
