"""Convert a traced or recorded program to an IR in functional form."""
