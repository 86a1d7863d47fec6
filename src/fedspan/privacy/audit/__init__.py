"""The audit: what a curious coordinator, an informed one and an outsider learn from a run's releases.

::

    transcript  ->  equations in A_i'A_i  ->  guesses, round by round  ->  errors, where the truth is at hand
    (transcript)    (equations)               (attacks)                    (scoring)

The auditor sees what the coordinator saw: the recorded transcript. A verdict rests on the strongest of the attacks
here, so it is a lower bound on what can be learnt; that an attack failed proves nothing.
"""

from fedspan.privacy.audit.attacks import ATTACKS
from fedspan.privacy.audit.external import External
from fedspan.privacy.audit.report import Audit, Penalty, SiteAudit, audit
from fedspan.privacy.audit.scoring import Curve

__all__ = ["ATTACKS", "Audit", "Curve", "External", "Penalty", "SiteAudit", "audit"]
