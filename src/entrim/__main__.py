"""`python -m entrim`: the command line where the script is not on the path."""

import sys

from entrim.cli.main import main

sys.exit(main())
