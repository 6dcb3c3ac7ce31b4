"""Write the page "Works with" from the results of the run."""

from tests.ecosystem import results

results.PAGE.write_text(results.page())
