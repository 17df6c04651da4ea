"""`python -m dpmd_fast.lab.audit`: run the audits."""

from dpmd_fast.lab.audit.attacks import main

raise SystemExit(main())
