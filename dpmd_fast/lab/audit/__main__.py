"""``python -m dpmd_fast.lab.audit``: run the audits."""

from dpmd_fast.lab.audit.program import main

raise SystemExit(main())
