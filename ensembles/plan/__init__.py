"""What a recipe will cost on collections of known sizes, and how it fits into a budget."""
