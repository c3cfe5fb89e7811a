"""Submit, watch and answer runs from Python. The command line is built on this module alone."""
