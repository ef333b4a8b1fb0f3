"""What people look at: the report of a run, and a question's tree in the terminal."""
