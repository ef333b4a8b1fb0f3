"""What `import verl` loads of ours, in every process that it starts (entry point group `verl.plugins`)."""
