"""From many models to one ranking: blending, and the whole run that ends in a submission."""
