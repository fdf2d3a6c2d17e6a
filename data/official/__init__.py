"""The names of the public dataset's graphs."""
