"""The built-in environment: facts of the CIA World Factbook, a search corpus, questions with gold answers, traces."""
