"""Report on studies: one HTML file with results and methods.

`data` reads rows and returns what the report shows as JSON, `summary` and `verdicts` put it in words, `figures` draws
it, `page` writes the HTML, and `pictures` draws the same data with Matplotlib. Nothing here trains or changes a
study. Terminal output belongs in `cli.output`.
"""
