"""The exit statuses of all commands; those after a signal are in `termination`."""

DONE = 0
FAILED = 1
REFUSED = 2

MEANING = """\b
Exit status:
  0    done
  1    done, and a result was wrong, an algorithm failed, or none served
  2    not done: the command line or a file that it names is wrong, or what was
       asked for cannot be served (no device, or a package that is not installed)
  130  interrupted (Ctrl-C); 143 asked to end (SIGTERM): what was done by then is
       shown, and kept in the file of --json and in the wisdom"""
