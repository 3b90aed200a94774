"""Products of 16-bit integers, and the recurrence over what they give."""
