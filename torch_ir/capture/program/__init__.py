"""A traced or recorded program as an IR, in functional form."""
