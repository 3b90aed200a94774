"""The compiled functions of `int16_bounds`: int16 products, and the recurrence over them."""
