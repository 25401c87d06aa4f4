"""Files: atomic writes, locks, side files, temporary folders, and detection of files that are not graphs."""
