"""The report of a result: what it shows as typed figures, and the page that shows it."""
