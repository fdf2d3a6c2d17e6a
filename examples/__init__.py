"""Small programs that use the packages, to read and to copy."""
