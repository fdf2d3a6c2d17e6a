"""Configs packed small: a table of distinct layout vectors, and indices into it per config."""
