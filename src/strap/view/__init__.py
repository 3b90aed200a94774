"""The viewer, `strap view`: a page to inspect a retrieval in the browser and to change it.

A *subject* is what the page shows (`subjects.Subject`): a run, several runs, rollouts or a dataset.
It returns plain data and images and does not depend on HTTP; the server does not depend on runs.
"""
