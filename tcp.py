import socket,sys,threading
if sys.argv[1]=='s':
    s=socket.create_server(('10.0.0.254',5000)); c,_=s.accept(); n=0
    while True:
        d=c.recv(1<<20)
        if not d: break
        n+=len(d)
    print('tcp got',n)
else:
    c=socket.create_connection(('10.0.0.254',5000)); c.sendall(b'x'*20000000); c.close()
