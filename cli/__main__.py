"""`python -m tilewright.cli`"""

from . import main

main()
