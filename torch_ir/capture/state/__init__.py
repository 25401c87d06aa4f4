"""State that forward reads or changes outside its inputs, and settings of the process."""
