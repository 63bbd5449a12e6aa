"""The custom headers of requests and responses: text by name on the wire, typed fields here.

One class encodes and decodes a header. A field without a default is required; None is not written. A field's name on the wire is
the attribute's in camel case, unless `named` gives another. If the exact name is missing, decoding ignores case: Go clients write
`Topic` and `QueueId`.
"""
