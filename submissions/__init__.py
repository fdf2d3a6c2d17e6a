"""Write, check, score, report and upload submissions."""
