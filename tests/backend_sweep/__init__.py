"""Every back end against eager: torch's operator database, adversarial values, and functions with dynamic sizes."""
