"""Tasks that train the user's functions, programs and other libraries' models.

Each adapter turns one kind of training into a `Task`, and its state into data. Algorithms of Rekindle belong in
`algorithms`, and what runs or stores any task belongs elsewhere.
"""
