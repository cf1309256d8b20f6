"""Makes a call with an empty message on a Unix socket with gRPC's Python client.

usage: client.py SOCKET PATH [AUTHORITY]

Prints `answer` and the message in hexadecimal, or the status and its text.
"""

import sys

import grpc

socket, path, *authority = sys.argv[1:]
options = [("grpc.default_authority", authority[0])] if authority else []
with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
    call = channel.unary_unary(path)
    try:
        print("answer", call(b"", timeout=20).hex())
    except grpc.RpcError as error:
        print(error.code().name, error.details())
