"""What the exit status of every command means; those of signals are in `termination`."""

DONE = 0
FAILED = 1
USAGE = 2

MEANING = """\b
Exit status:
  0    done
  1    a result was wrong, an algorithm failed, or nothing can serve what was asked
       for (no algorithm, no device, or a package that is not installed)
  2    the command line, or a file that it names, is wrong
  130  interrupted (Ctrl-C); 143 asked to end (SIGTERM): what was done by then is
       shown, and kept in the file of --json and in the wisdom"""
