"""What lists, timelines and numbers for people are read with."""
