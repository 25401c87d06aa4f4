"""Files that something happened to: each is refused with an error of ours, or means what it meant."""
