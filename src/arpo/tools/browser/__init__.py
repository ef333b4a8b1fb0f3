"""The browser tool: a page is fetched under guard, its text taken out, and what matters of it told."""
