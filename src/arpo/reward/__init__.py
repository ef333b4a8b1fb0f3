"""What a trajectory is worth: answers compared, format checked, parts added up."""
