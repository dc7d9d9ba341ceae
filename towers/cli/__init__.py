"""The command line: flags, jobs, exit codes."""
