"""`make demo-web`: the shop in the browser, with a worker that relays. Ctrl-C ends both.

The page has buttons that make something to see in the admin: see `buttons.py`.
"""

import os
import subprocess
import sys

from demo.stage import Stage

ADDRESS = os.environ.get("SHOP_ADDRESS", "127.0.0.1:8000")
LOGIN = "admin"


def main() -> int:
    os.environ.update(SHOP_URLS="demo.urls", SHOP_KEEPS="3600")
    stage = Stage()
    try:
        stage.set_up()
        create_admin()
        worker = stage.start_worker()
        print(f"worker    {worker.command}")
        print(f"shop      http://{ADDRESS}/")
        print(f"admin     http://{ADDRESS}/admin/   user {LOGIN}, password {LOGIN}")
        print("Ctrl-C ends both.", flush=True)
        return serve()
    except KeyboardInterrupt:
        return 0
    finally:
        stage.clear()


def create_admin() -> None:
    from django.contrib.auth import get_user_model

    users = get_user_model().objects
    if not users.filter(username=LOGIN).exists():
        users.create_superuser(LOGIN, password=LOGIN)


def serve() -> int:
    server = subprocess.Popen([sys.executable, "manage.py", "runserver", "--noreload", ADDRESS])
    try:
        return server.wait()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
