"""x in digits, and the products of digits: what the templates msd and msd_group share."""
