"""Looking at a retrieval in the browser, and steering it: `strap view`.

A *subject* is what is looked at. It answers in plain data and pictures (`subjects.Subject`), and
knows nothing of HTTP; the server knows HTTP, and nothing of runs.
"""
