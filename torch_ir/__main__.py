"""`python -m torch_ir` is the command line."""

import sys

from torch_ir.cli import main

if __name__ == "__main__":
    sys.exit(main())
