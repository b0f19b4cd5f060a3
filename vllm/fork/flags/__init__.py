"""The fork's flags: declared, checked, carried to workers, and corrected where misspelt."""
