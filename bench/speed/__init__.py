"""Claims about speed and memory: against simple code, other packages, and the machine."""
