"""Report of studies: one file that shows what they found, and how.

`data` reads rows and says what is shown, as JSON; `figures` draws it, `page` writes it down, and
`pictures` makes figures of Matplotlib of it. What trains or changes a study does not belong here, nor what a terminal
shows, which is in `cli.output`.
"""
