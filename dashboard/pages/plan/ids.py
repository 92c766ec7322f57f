"""The component ids of the plan page; assets/plan.js and plan.css use the same."""

from __future__ import annotations

HEADLINE = "plan-headline"
PARTS = "plan-parts"
BARRED = "plan-barred"
LANES = "plan-lanes"
ALTERNATIVES = "plan-alternatives"
GLOSSARY = "plan-glossary"
KEY = "plan-key"
REEXECUTE = "plan-reexecute"
VERDICT = "plan-verdict"
WORKING = "plan-working"
