"""Recognises faces, in the role of OpenFace: for each picture of a camera it answers whose face is in it.

Requests are a line and the bytes of a picture, answers are a line:

    LEARN name length   ok             remember this face
    TRAIN               ok samples     nothing can be recognised before
    WHO length          name distance  or "nobody"
"""
import random
import socketserver
import threading

import cv2
import numpy

SIDE = 128  # pixels of a face when it is compared
VARIANTS = 48  # of each face that is learnt: 64 KiB of the model each

cv2.setNumThreads(1)
cascade = cv2.CascadeClassifier("/usr/share/opencv4/haarcascades/haarcascade_frontalface_default.xml")
recogniser = cv2.face.LBPHFaceRecognizer_create(grid_x=8, grid_y=8)
lock = threading.Lock()
names, faces, labels = [], [], []
noise = random.Random(1)


def find(picture):
    """The largest face in a picture, of one size and brightness."""
    image = cv2.imdecode(numpy.frombuffer(picture, numpy.uint8), cv2.IMREAD_COLOR)
    if image is None:
        return None
    grey = cv2.equalizeHist(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY))
    for step, neighbours in ((1.15, 3), (1.07, 1)):
        found = cascade.detectMultiScale(grey, scaleFactor=step, minNeighbors=neighbours, minSize=(160, 160))
        if len(found) > 0:
            break
    else:
        return None
    x, y, w, h = max(found, key=lambda f: f[2] * f[3])
    return cv2.resize(grey[y:y + h, x:x + w], (SIDE, SIDE))


def variants(face):
    """The same face a little elsewhere, and in other light."""
    for _ in range(VARIANTS):
        shift = numpy.float32([[1, 0, noise.randint(-4, 4)], [0, 1, noise.randint(-4, 4)]])
        moved = cv2.warpAffine(face, shift, (SIDE, SIDE), borderMode=cv2.BORDER_REPLICATE)
        yield cv2.convertScaleAbs(moved, alpha=noise.uniform(0.9, 1.1), beta=noise.randint(-12, 12))


def learn(name, picture):
    face = find(picture)
    if face is None:
        return "bad: no face"
    if name not in names:
        names.append(name)
    for variant in variants(face):
        faces.append(variant)
        labels.append(names.index(name))
    return "ok"


def train():
    recogniser.train(faces, numpy.array(labels))
    samples = len(faces)
    faces.clear()
    labels.clear()
    return f"ok {samples}"


def who(picture):
    face = find(picture)
    if face is None:
        return "nobody"
    label, distance = recogniser.predict(face)
    return f"{names[label]} {distance:.1f}"


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while True:
            words = self.rfile.readline(256).decode().split()
            if not words:
                return
            picture = self.rfile.read(min(int(words[-1]), 16 << 20)) if len(words) > 1 else b""
            with lock:
                if words[0] == "LEARN":
                    answer = learn(words[1], picture)
                elif words[0] == "TRAIN":
                    answer = train()
                else:
                    answer = who(picture)
            self.wfile.write(answer.encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


with Server(("0.0.0.0", 7001), Handler) as server:
    print("ready", flush=True)
    server.serve_forever()
